"""The rooms as executor steps, with good defaults: `default_tokenize`, and more as rooms are built."""
