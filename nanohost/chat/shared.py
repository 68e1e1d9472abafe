"""The page of a shared conversation, for whoever has its link: nobody signs in, and nothing of its owner's is in it but
what was shared."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from conversations import sharing
from conversations.models import Message, calls_in

A_PAGE = 200

_HEADERS = {
    "Cache-Control": "no-store",
    # The address opens the page: no other host is told of it, and no search engine.
    "Referrer-Policy": "no-referrer",
    "X-Robots-Tag": "noindex, nofollow",
}


@require_safe
def show(request: HttpRequest, token: str) -> HttpResponse:
    """So many messages, and a link to the next ones. A link that has ended is as unknown as none."""
    link = sharing.find(token)
    if link is None:
        raise Http404
    given = request.GET.get("after", "0")
    after = int(given) if given.isascii() and given.isdigit() and len(given) < 19 else 0
    messages = sharing.read(link, after=after, most=A_PAGE)
    context = {
        "link": link,
        "agent": link.conversation.agent.called,
        "messages": [_shown(each, with_tools=link.with_tools) for each in messages],
        "after": after,
        "next": messages[-1].seq if len(messages) == A_PAGE else None,
    }
    answer = render(request, "chat/shared.html", context)
    for header, value in _HEADERS.items():
        answer[header] = value
    return answer


def _shown(message: Message, *, with_tools: bool) -> dict[str, object]:
    calls = calls_in(message.tool_calls) if with_tools else []
    return {
        "role": message.role,
        "content": message.content,
        "created_at": message.created_at,
        "files": [each["name"] for each in message.attachments or ()],
        "calls": [{"name": name, "arguments": given} for _, name, given in calls],
        "tool": message.tool_name,
    }
