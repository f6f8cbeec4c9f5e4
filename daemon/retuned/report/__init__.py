"""Reports: JSON-able data in, one self-contained HTML page or terminal tables out.

Pure: no files, clock, network or scripts. Names, comments and sources in the data are untrusted
text: `text.clean` removes what could control a terminal or mislead a reader; templates escape the
rest.
"""
