"""What a run will take, before it is launched: sizes, memory, disk and hours, without torch."""
