"""Who may ask the server of `regard live`, and what every response says to a browser."""

import http.client
import json

import pytest

from regard.server.security import AccessRules
from server.live_client import ask, post, request

QUESTION = {"texts": ["the bank"], "edits": []}
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
}


def posted(server, headers, *, secret=None):
    return request(server, "POST", "ask", json.dumps(QUESTION).encode(), headers, secret=secret)


@pytest.mark.parametrize("secret", ["", "x", "é", "..", "%00"])
@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("GET", "model"), ("POST", "ask"), ("PUT", "nothing")])
def test_without_the_secret_every_address_is_404_and_says_nothing(decoder_server, method, path, secret):
    secret = {"é": "%C3%A9"}.get(secret, secret)
    answered = request(decoder_server, method, path, secret=secret)
    assert (answered.status, answered.body) == (404, b"")


def test_a_secret_that_is_nearly_right_is_404(decoder_server):
    secret = decoder_server.rules.secret
    nearly = (secret[:-1], secret[:-1] + ("a" if secret[-1] != "a" else "b"), secret + "a")
    assert [posted(decoder_server, {}, secret=wrong).status for wrong in nearly] == [404] * 3


def test_every_server_has_a_secret_of_its_own_with_192_bits(small_decoder, serve):
    secrets = {serve(small_decoder).rules.secret for _ in range(3)}
    assert len(secrets) == 3
    assert {len(secret) for secret in secrets} == {32}  # 24 bytes in base64


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:{port}", "localhost:{port}", "localhost:9", "[::1]:{port}"])
def test_a_name_of_this_machine_is_answered_whatever_the_port_of_a_tunnel(decoder_server, host):
    assert posted(decoder_server, {"Host": host.format(port=decoder_server.port)}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "127.0.0.2",
        "",
        "a b",
        "localhost@evil.example",
        "evil.example/localhost",
        "[::1",
        "127.0.0.1:x",
        "@127.0.0.1",
        ":x@127.0.0.1",
        "127.0.0.1#x",
        "local\thost",
        "localhost.",
    ],
)
def test_a_host_of_another_name_is_refused_as_in_dns_rebinding(decoder_server, host):
    answered = posted(decoder_server, {"Host": host.format(port=decoder_server.port)})
    assert (answered.status, answered.json["name"]) == (403, "origin")


def test_a_request_without_a_host_is_refused(decoder_server):
    connection = http.client.HTTPConnection("127.0.0.1", decoder_server.port)
    connection.putrequest("GET", f"/{decoder_server.rules.secret}/model", skip_host=True)
    connection.endheaders()
    assert connection.getresponse().status in (400, 403)
    connection.close()


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost:{port}", "https://127.0.0.1:{port}"],
)
def test_another_origin_is_refused_even_with_the_secret(decoder_server, origin):
    answered = posted(decoder_server, {"Origin": origin.format(port=decoder_server.port)})
    assert (answered.status, answered.json["name"]) == (403, "origin")


def test_the_pages_own_origin_is_answered(decoder_server):
    assert posted(decoder_server, {"Origin": f"http://127.0.0.1:{decoder_server.port}"}).names[-1] == "answer"


def test_every_response_keeps_browsers_safe_and_names_neither_another_site_nor_the_server(decoder_server):
    for answered in (
        request(decoder_server, "GET", ""),
        request(decoder_server, "GET", "model"),
        request(decoder_server, "GET", "nothing"),
        request(decoder_server, "OPTIONS", "ask", headers={"Access-Control-Request-Method": "POST"}),
        request(decoder_server, "GET", "", secret="wrong"),
        posted(decoder_server, {}),
        posted(decoder_server, {"Origin": "https://evil.example"}),
        post(decoder_server, "ask", {}),
    ):
        assert HEADERS.items() <= answered.headers.items(), answered
        policy = answered.headers["content-security-policy"]
        assert all(rule in policy for rule in ("default-src 'none'", "frame-ancestors 'none'"))
        assert not [name for name in answered.headers if name.startswith("access-control") or name == "server"]


def test_a_preflight_of_another_site_is_not_granted(decoder_server):
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert request(decoder_server, "OPTIONS", "ask", headers=headers).status == 403


def test_the_page_runs_its_own_script_and_asks_this_server_alone(decoder_server):
    policy = request(decoder_server, "GET", "").headers["content-security-policy"].split("; ")
    assert policy[0] == "default-src 'none'"
    assert "connect-src 'self'" in policy
    (script,) = [rule for rule in policy if rule.startswith("script-src")]
    assert script.startswith("script-src 'sha256-")
    assert not [rule for rule in policy if "unsafe" in rule or "*" in rule]


def test_a_model_name_cannot_become_markup_of_the_page_or_of_its_frame(small_decoder, serve):
    server = serve(small_decoder, name='"></title><script>alert(1)</script>')
    page = request(server, "GET", "")
    assert b"<script>alert" not in page.body
    assert "<script" not in server._repr_html_()
    assert page.headers["content-type"].startswith("text/html; charset=utf-8")


def test_a_notebook_of_this_machine_may_frame_the_page_where_that_was_asked_for(small_decoder, serve):
    policy = request(serve(small_decoder, allow_frames=True), "GET", "").headers["content-security-policy"]
    assert "frame-ancestors http://127.0.0.1:* http://localhost:*" in policy


def test_the_address_without_its_slash_leads_to_the_page(decoder_server):
    connection = http.client.HTTPConnection("127.0.0.1", decoder_server.port)
    connection.request("GET", f"/{decoder_server.rules.secret}")
    response = connection.getresponse()
    assert (response.status, response.getheader("location")) == (308, f"/{decoder_server.rules.secret}/")
    connection.close()


@pytest.mark.parametrize(("method", "path"), [("GET", "ask"), ("DELETE", "model"), ("POST", ""), ("PUT", "effects")])
def test_another_method_is_refused(decoder_server, method, path):
    assert request(decoder_server, method, path).status == 405


def test_the_server_listens_on_this_machine_alone(decoder_server):
    assert decoder_server._socket.getsockname()[0] == "127.0.0.1"
    assert decoder_server.url.startswith(f"http://127.0.0.1:{decoder_server.port}/")


def test_a_server_for_other_machines_is_called_by_its_address_and_by_no_name_of_others(small_decoder, serve):
    server = serve(small_decoder, host="0.0.0.0", allow_remote=True, allowed_hosts=["lab.example"])
    hosts = ["192.168.1.7:80", "lab.example", "evil.example"]
    assert [posted(server, {"Host": host}).status for host in hosts] == [200, 200, 403]


@pytest.mark.parametrize("allowed", ["lab.example", ["other", "Lab.Example"]])
def test_a_name_of_ones_own_may_be_written_in_any_way(small_decoder, serve, allowed):
    server = serve(small_decoder, allowed_hosts=allowed)
    assert posted(server, {"Host": "lab.example"}).status == 200
    assert posted(server, {"Host": "l"}).status == 403


def test_the_letters_of_the_name_on_which_it_listens_may_be_large():
    assert AccessRules("secret", "MyLab").allows_host("mylab:80")


@pytest.mark.parametrize("path", ["model/", "model%2f", "ask/"])
def test_no_redirect_leads_out_of_the_secret(decoder_server, path):
    assert request(decoder_server, "GET", path).status == 404


def test_a_server_on_an_ipv6_address_is_called_by_it():
    rules = AccessRules("secret", "::1")
    assert rules.allows_host("[::1]:80")
    assert not rules.allows_host("[fe80::1]:80")


def test_a_second_tab_gets_its_own_text_alone(decoder_server):
    first, second = ask(decoder_server, "the river"), ask(decoder_server, "an bank")
    assert "river" not in json.dumps(second)
    assert first["texts"][0]["facts"]["texts"] != second["texts"][0]["facts"]["texts"]


def test_nothing_of_a_request_is_logged(small_decoder, serve, capfd):
    server = serve(small_decoder)
    ask(server, "the river bank")
    post(server, "ask", {"texts": "the river bank"})
    request(server, "GET", "", secret="wrong")
    server.close()
    assert capfd.readouterr() == ("", "")
