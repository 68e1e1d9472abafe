"""What the views of ``/v1`` have in common."""

from rest_framework.views import APIView

from nanohost.accounts.authentication import ApiKeyAuthentication


class KeyView(APIView):
    """A view that takes keys alone: pages of other origins may call it, and a session is none of theirs."""

    authentication_classes = [ApiKeyAuthentication]
