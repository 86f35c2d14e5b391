"""Dead letters as files: written durably, read slice by slice, on any Arrow filesystem."""
