"""How people hear of proposals, and may answer: messages out, signed words in.

What is said is made once (`notices`), put into each channel's form (`slack`, `pagers`, `alerts`,
`hooks`), and lies in an outbox until it is delivered. What comes in is proven before it is read.
"""
