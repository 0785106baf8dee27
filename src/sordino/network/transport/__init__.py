"""Ways from a server to its sites. Each carries frames as bytes and says who is there.

A transport authenticates: the name that it gives is that of a certificate of this federation. It
does not read frames, keeps no order between sites, and may lose what was on its way when a
connection ends: who was asked is asked again.
"""
