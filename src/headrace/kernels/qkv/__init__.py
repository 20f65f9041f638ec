"""From projected heads to rotated queries and a written cache, in one step."""
