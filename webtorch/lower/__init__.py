"""Floor 2: graphs become programs. Passes, fusion, planning, and the renderers to WGSL and to Python source."""
