"""`webtorch testpage`: every operation of the table, recorded with PyTorch's results, and the page that tests them.

What is tried, and what is known to differ, are fields of the entries (`ops/record`).
"""
