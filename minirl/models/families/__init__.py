"""One small file per MoE family: how its routers turn chosen experts into mixing weights."""
