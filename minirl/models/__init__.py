"""Models in Hugging Face format: built or loaded, their content hash, and the routing tape of the MoE families."""
