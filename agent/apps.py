from django.apps import AppConfig


class AgentConfig(AppConfig):
    name = "agent"

    def ready(self) -> None:
        from agent import document_files  # of models, which are there by now
        from tools.workspace import documents

        documents.add(document_files.KEPT)
