"""Events: parties with different features of the same entities learn one by one."""
