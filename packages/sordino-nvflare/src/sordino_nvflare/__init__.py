"""A federation of Sordino as a job of NVFlare, for consortia that run one.

The kits, what a site enforces and the run folders stay as they are. NVFlare starts the processes,
says who they are and carries their frames; its site policies and admin tools stay in force.

``transport`` is what Sordino finds, with a demo on an NVFlare of its own (``workspace``); ``job``
is what an ``admin`` submits; ``local`` are a site's own settings; ``channel`` are the two ends,
over the cells of NVFlare's processes. Only ``parts``, which NVFlare itself loads, imports it when
it is imported.
"""
