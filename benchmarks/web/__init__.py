"""Speed of exported pages in a browser, against other libraries for the web."""
