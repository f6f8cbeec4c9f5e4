"""The review page: what people look at before they say yes or no, rendered by the server.

`records` are the facts that a source hands over, `views` what a page says of them (pure), `app`
the requests. The Protocols of `ports` define the source of facts and who may decide: one
machine and the operator each plug in theirs. No script runs in the page, and a GET never decides.
"""
