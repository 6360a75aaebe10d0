//! What the server serves and how: a directory with its configuration, a document and a
//! certificate.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dimmer_processor::units::CpuId;
use tempfile::TempDir;

use super::load::{CHECKED, WRONG};
use super::tools::Tools;
use crate::BenchError;

/// The cipher, and the kind of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// ChaCha20-Poly1305, with connections that are kept.
    #[default]
    ChaCha,
    /// AES-128-GCM, likewise.
    Aes,
    /// AES-128-GCM, with one connection per request and an RSA key, whose signature the handshake
    /// needs.
    Rsa,
}

impl Tls {
    /// The only cipher, by its name in TLS 1.3.
    #[must_use]
    pub const fn cipher(self) -> &'static str {
        match self {
            Self::ChaCha => "TLS_CHACHA20_POLY1305_SHA256",
            Self::Aes | Self::Rsa => "TLS_AES_128_GCM_SHA256",
        }
    }

    /// The same cipher's name in TLS 1.2.
    const fn older_cipher(self) -> &'static str {
        match self {
            Self::ChaCha => "ECDHE-ECDSA-CHACHA20-POLY1305",
            Self::Aes => "ECDHE-ECDSA-AES128-GCM-SHA256",
            Self::Rsa => "ECDHE-RSA-AES128-GCM-SHA256",
        }
    }

    /// The configuration's lines about connections.
    const fn connections(self) -> &'static str {
        match self {
            Self::ChaCha | Self::Aes => "keepalive_timeout 65;\n    keepalive_requests 1000;",
            Self::Rsa => {
                "keepalive_timeout 0;\n    ssl_session_cache off;\n    ssl_session_tickets off;"
            }
        }
    }

    /// The arguments with which `openssl req` makes the key.
    const fn key(self) -> &'static [&'static str] {
        match self {
            Self::ChaCha | Self::Aes => {
                &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
            }
            Self::Rsa => &["-newkey", "rsa:2048"],
        }
    }
}

/// The least length of the document: a page of text, tens of kB, of which gzip leaves some 8 kB.
pub const DOCUMENT_BYTES: usize = 24 << 10;

/// Words of the document. It compresses as text does, to a third.
const WORDS: &str = "a about all an and are as at be but by can carries clock code core cost each every fast \
     for frequency from has have how if in instruction is it its leave license light like long machine many \
     measure more most narrow near next no not of on one or other over page part phase place processor \
     program reader request run same server slow so text than that the their there these they this through \
     time to under until vector wait what when where which while wide with work";

/// Words in a paragraph.
const PARAGRAPH: usize = 60;

/// The directory, removed when this is dropped.
#[derive(Debug)]
pub(super) struct Site {
    directory: TempDir,
    port: u16,
}

impl Site {
    /// Makes the site, for a worker on `cpu`.
    pub(super) fn make(tools: &Tools, cpu: CpuId, tls: Tls) -> Result<Self, BenchError> {
        let directory = tempfile::Builder::new().prefix("dimmer-nginx-").tempdir();
        let directory = directory.map_err(BenchError::system("make a temporary directory"))?;
        let port = free_port().map_err(BenchError::system("find a free port"))?;
        let site = Self { directory, port };
        let is_root = rustix::process::geteuid().is_root();
        site.write("nginx.conf", &configuration(site.directory(), port, cpu, is_root, tls))?;
        fs::create_dir(site.directory().join("www"))
            .map_err(BenchError::system("make a directory for the document"))?;
        site.write("www/index.html", &document())?;
        certificate(tools, site.directory(), tls)?;
        Ok(site)
    }

    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn url(&self) -> String {
        format!("https://127.0.0.1:{}/index.html", self.port)
    }

    /// Writes the script with which wrk compares answers with the document.
    pub(super) fn check(&self) -> Result<PathBuf, BenchError> {
        let document = self.directory().join("www/index.html");
        let text = format!(
            "local threads = {{}}
function setup(thread) table.insert(threads, thread) end
function init()
  local file = io.open({document:?}, \"rb\")
  expected = file:read(\"*a\")
  file:close()
  checked, wrong = 0, 0
end
function response(status, headers, body)
  checked = checked + 1
  if body ~= expected then wrong = wrong + 1 end
end
function done()
  local checked, wrong = 0, 0
  for _, thread in ipairs(threads) do
    checked, wrong = checked + thread:get(\"checked\"), wrong + thread:get(\"wrong\")
  end
  print(\"{CHECKED} \" .. checked)
  print(\"{WRONG} \" .. wrong)
end
"
        );
        self.write("check.lua", &text)?;
        Ok(self.directory().join("check.lua"))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), BenchError> {
        let file = self.directory().join(name);
        fs::write(&file, text).map_err(BenchError::system(format!("write {}", file.display())))
    }
}

/// A port at which no process listens. Another process may take it before the server does; the
/// server then reports that.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// The server's configuration: as in distributions (master and worker, `sendfile`, connections kept
/// for 1000 requests except for handshakes, gzip at its default level), with one worker, one cipher
/// and no files outside `directory`.
///
/// Only the user can use the directory, so a worker that root starts stays root (`user`).
fn configuration(directory: &Path, port: u16, cpu: CpuId, is_root: bool, tls: Tls) -> String {
    let (cipher, older, connections) = (tls.cipher(), tls.older_cipher(), tls.connections());
    let directory = directory.display();
    let user = if is_root { "user root;\n" } else { "" };
    // nginx expects one digit per CPU, the last digit for the first CPU.
    let mask: String =
        (0..=cpu.index()).rev().map(|one| if one == cpu.index() { '1' } else { '0' }).collect();
    format!(
        "{user}daemon off;
master_process on;
worker_processes 1;
worker_cpu_affinity {mask};
pid \"{directory}/nginx.pid\";
error_log stderr warn;
events {{
    worker_connections 1024;
}}
http {{
    default_type text/html;
    access_log off;
    sendfile on;
    tcp_nopush on;
    {connections}
    gzip on;
    gzip_min_length 20;
    client_body_temp_path \"{directory}/body\";
    proxy_temp_path \"{directory}/proxy\";
    fastcgi_temp_path \"{directory}/fastcgi\";
    uwsgi_temp_path \"{directory}/uwsgi\";
    scgi_temp_path \"{directory}/scgi\";
    server {{
        listen 127.0.0.1:{port} ssl;
        root \"{directory}/www\";
        ssl_certificate \"{directory}/certificate.pem\";
        ssl_certificate_key \"{directory}/key.pem\";
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_ciphers {older};
        ssl_conf_command Ciphersuites {cipher};
    }}
}}
"
    )
}

/// A text that is the same every time.
fn document() -> String {
    let words: Vec<&str> = WORDS.split_ascii_whitespace().collect();
    let mut text = "<!doctype html>\n<title>A page</title>\n".to_owned();
    // Knuth's MMIX generator; its upper half is the better one.
    let mut state = 1_u64;
    let mut below = |number: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap_or_default() % number
    };
    while text.len() < DOCUMENT_BYTES {
        let paragraph: Vec<&str> = (0..PARAGRAPH).map(|_| words[below(words.len())]).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "<p>{}.</p>", paragraph.join(" "));
    }
    text
}

/// Makes a certificate for two days that no client trusts, and its key, which is RSA or on the
/// curve that most sites use.
fn certificate(tools: &Tools, directory: &Path, tls: Tls) -> Result<(), BenchError> {
    let mut command = Command::new(&tools.openssl);
    command.args(["req", "-x509"]).args(tls.key());
    command.args(["-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout"]);
    command.arg(directory.join("key.pem")).arg("-out").arg(directory.join("certificate.pem"));
    let output =
        command.stdin(Stdio::null()).output().map_err(BenchError::system("run openssl"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(BenchError::Failed { program: "openssl".to_owned(), said })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_is_bound_to_its_cpu() {
        let text = |cpu| configuration(Path::new("/d"), 8443, CpuId::new(cpu), false, Tls::ChaCha);
        assert!(text(0).contains("\nworker_cpu_affinity 1;\n"));
        assert!(text(5).contains("\nworker_cpu_affinity 100000;\n"));
    }

    #[test]
    fn configuration_has_one_cipher_and_stays_in_its_directory() {
        let text = configuration(Path::new("/a b"), 8443, CpuId::new(1), false, Tls::ChaCha);
        for line in [
            "master_process on;",
            "worker_processes 1;",
            "listen 127.0.0.1:8443 ssl;",
            "ssl_protocols TLSv1.2 TLSv1.3;",
            "ssl_ciphers ECDHE-ECDSA-CHACHA20-POLY1305;",
            "ssl_conf_command Ciphersuites TLS_CHACHA20_POLY1305_SHA256;",
            "gzip on;",
            "access_log off;",
            "root \"/a b/www\";",
            "pid \"/a b/nginx.pid\";",
        ] {
            assert!(text.lines().any(|found| found.trim() == line), "{line} in:\n{text}");
        }
        for (at, _) in text.match_indices('/') {
            let is_inside = text[..at].ends_with("/a b") || text[at..].starts_with("/a b");
            assert!(is_inside || text[..at].ends_with("text"), "{}", &text[at..]);
        }
        assert!(!text.contains("user "));
        let text = configuration(Path::new("/d"), 8443, CpuId::new(1), true, Tls::Rsa);
        assert!(text.starts_with("user root;\ndaemon off;\n"));
        assert!(text.contains("keepalive_timeout 0;") && text.contains("ECDHE-RSA-AES128-GCM"));
    }

    #[test]
    fn document_is_as_long_as_said_and_the_same_every_time() {
        let text = document();
        assert!((DOCUMENT_BYTES..DOCUMENT_BYTES + 1024).contains(&text.len()), "{}", text.len());
        assert!(text.is_ascii());
        assert_eq!(text, document());
    }
}
