"""``manage.py skills``."""

from typing import Any

from django.core.management.base import BaseCommand

from tools.skills.shelf import missing, shelf


class Command(BaseCommand):
    """Lists the skills in NANOHOST_SKILLS, what they miss, and what is wrong with folders that are none."""

    help = "List the skills of NANOHOST_SKILLS, and their missing requirements."

    def handle(self, *args: Any, **options: Any) -> None:
        found = shelf()
        for skill in found.skills.values():
            lacks = ", ".join(missing(skill))
            kind = f"needs {lacks}" if lacks else ("always" if skill.always else "available")
            self.stdout.write(f"{skill.name}\t{kind}\t{skill.description}")
        for folder, problem in found.problems.items():
            self.stdout.write(f"{folder}\tnot used\t{problem}")
        if not found.skills and not found.problems:
            self.stdout.write("There are no skills. NANOHOST_SKILLS names their folder.")
