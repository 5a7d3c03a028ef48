"""Who may run code here: keys, signatures, the store of trusted keys, and the policy."""
