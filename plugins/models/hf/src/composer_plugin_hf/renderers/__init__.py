"""Renderers: `xml`, few tokens for a policy trained from nothing, and `hermes`, what Qwen-like models know."""
