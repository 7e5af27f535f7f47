"""Messages packed to a block, as the broker stores them."""
