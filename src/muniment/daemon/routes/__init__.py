"""The routes: what each one takes and answers, and how."""
