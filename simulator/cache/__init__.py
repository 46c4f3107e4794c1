"""KV blocks on the device, in host memory and on disk, and the slots of LoRA adapters."""
