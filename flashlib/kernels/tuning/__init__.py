"""Tuning on request: `search` times configurations, `store` keeps what was found."""
