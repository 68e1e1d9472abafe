# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --require-hashes

.PHONY: run stack secrets test lint faults mutants bench screenshots lock

run: $(VENV)/runtime-installed
	@exec $(BIN)/python manage.py serve

# The production shape on this machine, with PostgreSQL and Redis; N of each worker.
N ?= 1
stack: $(VENV)/runtime-installed
	@exec $(BIN)/python manage.py stack --workers $(N)

# Of models' providers: those that are set are written, and those that `manage.py import_config` has put into var/secrets.
MODEL_KEYS := OPENAI_API_KEY ANTHROPIC_API_KEY AZURE_OPENAI_API_KEY OPENROUTER_API_KEY AIHUBMIX_API_KEY SILICONFLOW_API_KEY \
	VOLCENGINE_API_KEY DEEPSEEK_API_KEY GEMINI_API_KEY ZAI_API_KEY DASHSCOPE_API_KEY MOONSHOT_API_KEY \
	MINIMAX_API_KEY GROQ_API_KEY HOSTED_VLLM_API_KEY CUSTOM_API_KEY OPENAI_CODEX_TOKEN GITHUB_COPILOT_TOKEN LLM_HEADERS

# What docker-compose.yml mounts. The folder is its owner's alone; in it, each container's user may read what it is given.
secrets:
	@umask 022 && mkdir -p -m 700 secrets && cd secrets && \
	random() { LC_ALL=C tr -dc A-Za-z0-9 </dev/urandom | head -c 64; } && \
	{ [ -s postgres_password ] || random >postgres_password; } && \
	{ [ -s secret_key ] || random >secret_key; } && \
	{ [ -s webhook_key ] || random >webhook_key; } && \
	{ [ -s database_url ] || echo "postgresql://nanohost:$$(cat postgres_password)@postgres:5432/nanohost" >database_url; } && \
	{ [ -e attachments_bucket_key ] || printf %s "$$ATTACHMENTS_BUCKET_KEY" >attachments_bucket_key; } && \
	{ [ -e oidc_client_secret ] || printf %s "$$OIDC_CLIENT_SECRET" >oidc_client_secret; } && \
	{ [ -e email_host_password ] || printf %s "$$EMAIL_HOST_PASSWORD" >email_host_password; } && \
	for name in $(MODEL_KEYS); do \
		file=$$(echo $$name | tr A-Z a-z); also=$$name; [ $$name != ZAI_API_KEY ] || also=ZHIPUAI_API_KEY; \
		[ -s $$file ] || { printenv $$name || printenv $$also || cat ../var/secrets/$$file 2>/dev/null; } | tr -d '\n' >$$file; \
	done

# On every shape there are servers for; its last line names those that ran.
test: $(VENV)/dev-installed $(VENV)/clients-installed lint
	@$(BIN)/python -m tests.shapes

lint: $(VENV)/dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Every fault at full dose; `make test` has a small one. FAULTS_SEED repeats a run's kills.
faults: $(VENV)/dev-installed
	@$(BIN)/python -m tests.shapes --numprocesses 0 -m faults

# Small mistakes in a copy of the code, one at a time, each of which a test must see: for an hour, MODULES="a/b.py" less;
# SINCE=REV tries what has changed since.
mutants: $(VENV)/dev-installed $(VENV)/mutants-installed
	@$(BIN)/python -m tests.mutation $(if $(SINCE),--since $(SINCE)) $(MODULES)

# What a turn costs and how many there are in a second: figures of this machine, in three minutes when it is idle.
bench: $(VENV)/dev-installed
	$(BIN)/python -m tests.bench

# Every page of the console, and the chat, on a wide screen and on a phone, into docs/screenshots; look at them before you
# keep them.
screenshots: $(VENV)/dev-installed
	@SCREENSHOTS=docs/screenshots $(BIN)/python -m pytest --numprocesses 0 tests/console/test_browser.py \
		tests/console/test_chat.py -k "every_page or photographed"

# Needs uv; writes versions and hashes, and no index's address.
lock:
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --custom-compile-command "make lock" -q -o requirements.txt
	uv pip compile --group mutants --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --custom-compile-command "make lock" -q -o requirements-mutants.txt
	uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --custom-compile-command "make lock" -q -c requirements.txt -o requirements-dev.txt
	uv pip compile --group clients --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --custom-compile-command "make lock" -q -o requirements-clients.txt

# Made anew when its Python is gone or was replaced, and when it could not be finished.
$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "nanohost needs Python 3.11 or newer; there is no $(PYTHON). Set PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("nanohost needs Python 3.11 or newer; this is %s. Set PYTHON=..." % sys.version.split()[0])'
	@$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/runtime-installed: requirements.txt $(BIN)/python
	@echo "Installing what nanohost needs into $(VENV); this takes a minute, once."
	@$(INSTALL) -r requirements.txt
	@touch $@

$(VENV)/dev-installed: requirements-dev.txt $(BIN)/python
	@echo "Installing what nanohost and its tests need into $(VENV); this takes a minute, once."
	@$(INSTALL) -r requirements-dev.txt
	@touch $@ $(VENV)/runtime-installed

$(VENV)/clients-installed: requirements-clients.txt $(BIN)/python
	@echo "Installing programs that speak OpenAI's API into $(VENV)/clients; this takes a minute, once."
	@$(BIN)/python -m venv $(VENV)/clients
	@$(VENV)/clients/bin/python -m pip install --quiet --disable-pip-version-check --no-input --require-hashes -r requirements-clients.txt
	@touch $@

$(VENV)/node-installed: $(BIN)/python
	@echo "Installing an MCP server that others wrote into $(VENV)/node, with npm."
	@npm install --prefix $(VENV)/node --ignore-scripts --no-audit --no-fund --no-save --silent @modelcontextprotocol/server-everything@2026.8.31
	@touch $@

$(VENV)/mutants-installed: requirements-mutants.txt $(BIN)/python
	@echo "Installing what makes the mistakes into $(VENV)/mutants; this takes a minute, once."
	@$(BIN)/python -m venv $(VENV)/mutants
	@$(VENV)/mutants/bin/python -m pip install --quiet --disable-pip-version-check --no-input --require-hashes -r requirements-mutants.txt
	@touch $@
