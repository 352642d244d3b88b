"""``narrowpass new-plugin``: writes the files of a plugin from templates."""
