"""KV blocks on the device and beside it, and the slots of LoRA adapters."""
