"""lower/templates."""
