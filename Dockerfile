# One image for every process; docker-compose.yml says which runs what.
FROM python:3.11-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /venv
COPY requirements.txt .
RUN /venv/bin/pip install --require-hashes -r requirements.txt

FROM python:3.11-slim
# The sandbox of tools, where the container may make user namespaces; by Docker's defaults it may not, and it is Landlock.
RUN apt-get -qq update && apt-get -qq install --yes --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*
# The ids are numbers, so that an orchestrator can see that they are not root's.
RUN groupadd --gid 10001 nanohost && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp nanohost
# Where the volume of messages' files is mounted, which takes its owner from here.
RUN install --directory --owner=10001 --group=10001 --mode=700 /attachments /workspaces /skills
COPY --from=build /venv /venv
WORKDIR /app
COPY . .
# The root file system is read-only: what Python would compile at a start is compiled here.
RUN /venv/bin/python -m compileall -q /app
ENV PATH=/venv/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
EXPOSE 8000
# Every process ends cleanly at SIGTERM: a web node drains, a worker hands its turns back.
STOPSIGNAL SIGTERM
CMD ["python", "manage.py", "web"]
