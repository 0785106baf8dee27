"""Events: parties with different features of the same entities learn together, one event after
another.
"""
