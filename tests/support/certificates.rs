//! Certificates for one test, made by openssl.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

/// Makes an authority `{name}.pem` and `{name}.key` in a folder.
pub fn authority(dir: &Path, name: &str) {
    let subject = format!("/CN={name}");
    let (key, pem) = (format!("{name}.key"), format!("{name}.pem"));
    let usage = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"];
    openssl(
        dir,
        &[&["req", "-x509", "-days", "2", "-subj", &subject, "-keyout", &key, "-out", &pem], &usage[..], NEW_KEY]
            .concat(),
    );
}

/// Makes `{name}.pem` and `{name}.key`, for 127.0.0.1 and localhost, signed by an authority.
pub fn signed(dir: &Path, name: &str, by: &str) {
    let (key, request, pem) = (format!("{name}.key"), format!("{name}.csr"), format!("{name}.pem"));
    let subject = format!("/CN={name}");
    openssl(dir, &[&["req", "-subj", &subject, "-keyout", &key, "-out", &request], NEW_KEY].concat());
    fs::write(dir.join("extensions"), "subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\n")
        .expect("a file");
    let (ca, ca_key) = (format!("{by}.pem"), format!("{by}.key"));
    let sign = ["x509", "-req", "-in", &request, "-CA", &ca, "-CAkey", &ca_key, "-CAcreateserial", "-out", &pem];
    openssl(dir, &[&sign[..], &["-days", "2", "-extfile", "extensions"]].concat());
}

const NEW_KEY: &[&str] = &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

fn openssl(dir: &Path, args: &[&str]) {
    let output = Command::new("openssl").args(args).current_dir(dir).stdin(Stdio::null()).output();
    let output = output.expect("these tests need the command openssl");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}
