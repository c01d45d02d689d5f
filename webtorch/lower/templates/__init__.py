"""Routines with a kernel of their own: matrix products, convolutions, scans. Floor 2."""
