"""Reports: JSON-able data in, one self-contained HTML page or terminal tables out.

Pure: no files, clock, network or scripts. Names, comments and sources in the data are strangers'
text: `words.clean` takes out what could steer a terminal or a reader, templates escape the rest.
"""
