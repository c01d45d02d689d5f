"""Real training jobs that show the library at work: `webtorch demo digits` and `webtorch demo gpt`.

Floor 6: a demo is a program of a user, and imports what a user would.
"""
