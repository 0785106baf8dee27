"""A tunnel through NVFlare, for consortia whose firewalls let nothing else pass.

A federation over NVFlare is an ordinary one over WebSocket: ``sordino serve`` and ``sordino join``
are processes of their own. A job of NVFlare carries the bytes of their TCP connections, which are
TLS from end to end, and knows nothing of them.

``tunnel`` are the two ends; ``parts`` puts them into a job of NVFlare, and only NVFlare imports it;
``local`` says which ports each end's own operator has allowed; ``job`` is what an ``admin``
submits; ``demo`` plays everything on one machine, on an NVFlare of its own.
"""
