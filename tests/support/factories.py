"""Rows the tests start from."""

import factory
from django.contrib.auth import get_user_model

from agent.models import Agent


class OwnerFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = get_user_model()

    username = factory.Sequence(lambda number: f"owner-{number}")


class AgentFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = Agent

    name = factory.Sequence(lambda number: f"agent-{number}")
    every_tool = True
