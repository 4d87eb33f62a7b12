"""Pure estimators over what is known of a batch, as statistics that merge over micro-batches and ranks."""
