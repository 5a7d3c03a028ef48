"""Which scheme each matrix gets where a recipe has a goal: what each costs is measured, and a mixture found."""
