"""A federation as a job of NVFlare, for consortia that run one.

The kits, what a site enforces and the run folders stay as they are. NVFlare starts the processes,
says who they are and carries their frames; its site policies and admin tools stay in force. Only
``parts`` and ``cell``, which NVFlare itself loads, import it when they are imported.
"""
