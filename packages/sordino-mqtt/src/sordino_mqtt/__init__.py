"""MQTT 5 for federations of Sordino: server and sites are clients of a broker, Eclipse Mosquitto.

``transport`` is what Sordino finds, with the two ends over a ``link`` each, and ``broker``
writes the broker's settings and rights, and starts one for a demo.
"""
