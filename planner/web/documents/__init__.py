"""What answers of the API contain, as pure functions of their arguments."""
