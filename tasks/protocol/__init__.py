"""What a request and its result look like on the wire, and what is believed of them."""
