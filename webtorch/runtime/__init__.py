"""From pending graphs to cached programs that run on a device. Floor 3."""
