"""Skills in the console: listed, read, given to agents one by one; a zip is looked through before it is unpacked."""

import io
import stat
import struct
import zipfile

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from nanohost.accounts.models import AuditEntry
from nanohost.console.roles import ADMIN, OPERATOR, VIEWER, sync_roles
from nanohost.lib.errors import InvalidRequest, NotFound
from tests.support.console_client import client_of
from tests.support.factories import AgentFactory
from tools.skills import uploads
from tools.skills.models import SkillSetting
from tools.skills.shelf import file_of, shelf

pytestmark = pytest.mark.django_db(transaction=True)

SKILL = b"---\nname: tea\ndescription: How tea is <b>made</b>.\n---\nBrew it.\n"


@pytest.fixture(autouse=True)
def place(settings, tmp_path):
    settings.SKILLS_DIR = tmp_path / "skills"
    return settings.SKILLS_DIR


def packed(files, *, method=zipfile.ZIP_DEFLATED):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


def tea(**more):
    return packed({"tea/SKILL.md": SKILL, "tea/references/kinds.md": b"Green."} | more)


def put(client, content):
    return client.post(reverse("admin:skill_upload"), {"file": SimpleUploadedFile("it.zip", content)}, follow=True)


def allow(client, **given):
    return client.post(reverse("admin:skill_allow"), {"name": "tea"} | given, follow=True).content.decode()


def test_a_skill_is_uploaded_read_given_to_an_agent_and_removed(admin_client, place):
    clerk = AgentFactory(name="clerk")
    said = put(admin_client, tea()).content.decode()
    assert "No agent may use it yet" in said
    assert "Brew it." in said
    assert sorted(each.name for each in place.iterdir()) == ["tea"]
    assert "tea" not in shelf(agent="clerk").found
    with pytest.raises(ValueError, match="no skill"):
        file_of("tea", "SKILL.md", agent="clerk")
    assert "may be used by clerk" in allow(admin_client, agents=["clerk", "nobody-there"])
    assert shelf(agent="clerk").found["tea"].trusted
    assert file_of("tea", "references/kinds.md", agent="clerk") == (b"Green.", True)
    assert "tea" not in shelf(agent="default").found
    listed = admin_client.get(reverse("admin:skills")).content.decode()
    assert "How tea is &lt;b&gt;made&lt;/b&gt;." in listed
    assert "<td>clerk</td>" in listed
    assert "may be used by every agent" in allow(admin_client, every="1")
    assert "tea" in shelf(agent="default").found
    allow(admin_client, agents=["clerk"])
    clerk.remove()
    assert SkillSetting.objects.get().agents == []
    said = admin_client.post(reverse("admin:skill_remove"), {"name": "tea"}, follow=True).content.decode()
    assert "was removed" in said
    assert list(place.iterdir()) == []
    deeds = AuditEntry.objects.filter(action__startswith="skill.").order_by("pk").values_list("action", flat=True)
    assert list(deeds) == ["skill.uploaded", *["skill.allowed"] * 3, "skill.removed"]


def test_one_that_was_removed_and_uploaded_again_is_nobodys_at_first(admin_client):
    put(admin_client, tea())
    allow(admin_client, every="1")
    admin_client.post(reverse("admin:skill_remove"), {"name": "tea"})
    put(admin_client, tea())
    assert SkillSetting.objects.get().agents == []


def test_a_skill_of_a_folder_may_be_kept_from_agents_and_is_not_removed_here(admin_client, settings, tmp_path):
    settings.NANOHOST_SKILLS = str(tmp_path / "host")
    (tmp_path / "host" / "tea").mkdir(parents=True)
    (tmp_path / "host" / "tea" / "SKILL.md").write_bytes(SKILL)
    assert "tea" in shelf(agent="default").found
    allow(admin_client, agents=[])
    assert "tea" not in shelf(agent="default").found
    with pytest.raises(NotFound):
        uploads.remove("tea")
    for name in ("../host/tea", "..", ".", ""):
        with pytest.raises(NotFound):
            uploads.remove(name)
    assert (tmp_path / "host" / "tea" / "SKILL.md").exists()
    assert "There is a skill tea already" in put(admin_client, tea()).content.decode()


@pytest.mark.parametrize(("role", "changes"), [(VIEWER, 0), (OPERATOR, 0), (ADMIN, 1)])
def test_who_may_what(role, changes):
    sync_roles()
    client = client_of(role)
    uploads.upload(tea())
    assert client.get(f"{reverse('admin:skill')}?name=tea").status_code == 200
    shown = client.get(reverse("admin:skills")).content.decode()
    assert ('id="upload-skill"' in shown) is bool(changes)
    for name, given in (("skill_allow", {"every": "1"}), ("skill_remove", {}), ("skill_upload", {})):
        assert client.post(reverse(f"admin:{name}"), {"name": "tea"} | given).status_code == (302 if changes else 403)
        assert client.get(reverse(f"admin:{name}")).status_code == 405
    assert client.get(f"{reverse('admin:skill')}?name=coffee").status_code == 404


# --- hostile archives --------------------------------------------------------------------------------------------


def link():
    entry = zipfile.ZipInfo("tea/link")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


def fifo():
    entry = zipfile.ZipInfo("tea/fifo")
    entry.external_attr = (stat.S_IFIFO | 0o600) << 16
    return entry


def lying_about_size():
    """Says that a file has one byte, and holds a bomb."""
    bomb = packed({"tea/SKILL.md": SKILL, "tea/bomb": b"\0" * (uploads.MAX_FILE_BYTES + 1)})
    real = struct.pack("<I", uploads.MAX_FILE_BYTES + 1)
    return bomb.replace(real, struct.pack("<I", 1))


def encrypted():
    data = bytearray(tea())
    at = data.index(b"PK\x01\x02")
    data[at + 8] |= 1
    data[6] |= 1
    return bytes(data)


HOSTILE = {
    "upwards": lambda: tea(**{"tea/../../evil": b"x"}),
    "upwards at once": lambda: tea(**{"../evil": b"x"}),
    "absolute": lambda: tea(**{"/etc/evil": b"x"}),
    "backslash": lambda: tea(**{"tea\\..\\evil": b"x"}),
    "drive": lambda: tea(**{"C:evil": b"x"}),
    "NUL": lambda: tea(**{"tea/a": b"x"}).replace(b"tea/a", b"te\0/a"),
    "control": lambda: tea(**{"tea/a\x1b[2J": b"x"}),
    "link": lambda: packed_with(link(), b"/etc/passwd"),
    "fifo": lambda: packed_with(fifo(), b""),
    "hidden": lambda: tea(**{"tea/.ssh/config": b"x"}),
    "deep": lambda: tea(**{"tea/" + "a/" * 20 + "b": b"x"}),
    "long": lambda: tea(**{"tea/" + "a" * 300: b"x"}),
    "twice": lambda: tea(**{"tea/A.md": b"x", "tea/a.md": b"y"}),
    "file and folder": lambda: tea(**{"tea/a": b"x", "tea/a/b": b"y"}),
    "folder and file": lambda: tea(**{"tea/a/b": b"x", "tea/a": b"y"}),
    "many": lambda: tea(**{f"tea/{at}": b"" for at in range(uploads.MAX_FILES + 1)}),
    "many folders": lambda: tea(**{f"tea/{at}/": b"" for at in range(2 * uploads.MAX_FILES + 1)}),
    "bomb": lambda: tea(**{"tea/bomb": b"\0" * (uploads.MAX_FILE_BYTES + 1)}),
    "bombs": lambda: tea(**{f"tea/{at}": b"\0" * (uploads.MAX_FILE_BYTES - 1) for at in range(5)}),
    "lying": lying_about_size,
    "large": lambda: b"PK\x03\x04" + b"x" * uploads.MAX_ZIP_BYTES,
    "packed otherwise": lambda: packed({"tea/SKILL.md": SKILL}, method=zipfile.ZIP_LZMA),
    "encrypted": encrypted,
    "cut": lambda: tea()[:-30],
    "damaged": lambda: packed({"tea/SKILL.md": SKILL}, method=zipfile.ZIP_STORED).replace(b"Brew", b"Burn"),
    "no archive": lambda: b"hello",
    "empty": lambda: b"",
    "nothing in it": lambda: packed({}),
    "two skills": lambda: tea(**{"coffee/SKILL.md": SKILL}),
    "beside the folder": lambda: tea(**{"README.md": b"x"}),
    "no SKILL.md": lambda: packed({"tea/README.md": b"x"}),
    "another name": lambda: packed({"coffee/SKILL.md": SKILL}),
    "unfit name": lambda: packed({"Tea Time/SKILL.md": SKILL}),
    "no frontmatter": lambda: packed({"tea/SKILL.md": b"Brew."}),
    "not UTF-8": lambda: packed({"tea/SKILL.md": b"\xff"}),
}


def packed_with(entry, content):
    made = io.BytesIO(tea())
    with zipfile.ZipFile(made, "a") as archive:
        archive.writestr(entry, content)
    return made.getvalue()


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_with_a_sentence_and_leaves_nothing(kind, tmp_path, place):
    with pytest.raises(InvalidRequest) as refused:
        uploads.upload(HOSTILE[kind]())
    assert refused.value.detail.endswith(".")
    assert refused.value.detail.isprintable()
    assert not place.exists() or list(place.iterdir()) == []
    assert [each.name for each in tmp_path.iterdir()] in ([], ["skills"])
    assert not AuditEntry.objects.filter(action="skill.uploaded").exists()


def test_what_is_stored_is_no_program(place):
    entry = zipfile.ZipInfo("tea/run.sh")
    entry.external_attr = (stat.S_IFREG | stat.S_ISUID | 0o777) << 16
    uploads.upload(packed_with(entry, b"#!/bin/sh\n"))
    assert (place / "tea" / "run.sh").stat().st_mode & 0o7111 == 0


def test_a_place_that_cannot_be_written_is_told(place):
    place.write_text("a file stands there")
    with pytest.raises(InvalidRequest, match="could not be stored"):
        uploads.upload(tea())
