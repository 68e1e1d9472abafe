from django.apps import AppConfig


class MemoryConfig(AppConfig):
    name = "memory"

    def ready(self) -> None:
        from memory import files  # of models, which are there by now
        from tools.workspace import documents

        documents.add(files.KEPT)
