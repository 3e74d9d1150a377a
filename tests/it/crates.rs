use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const LICENSES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/third-party-licenses.txt");
const WINDOWS_LICENSES: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/docs/third-party-licenses-windows.txt");
const DEPENDENCIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/dependencies.md");

/// The architectures of the image.
const TARGETS: [&str; 5] = [
    "--target=x86_64-unknown-linux-gnu",
    "--target=aarch64-unknown-linux-gnu",
    "--target=armv7-unknown-linux-gnueabihf",
    "--target=powerpc64le-unknown-linux-gnu",
    "--target=s390x-unknown-linux-gnu",
];
const WINDOWS: [&str; 1] = ["--target=x86_64-pc-windows-gnu"];
/// Of the licences that a crate offers, the first of these is taken.
const PREFERRED: [&str; 2] = ["MIT", "Apache-2.0"];
const HEAD: &str = "\
What is in the binary besides this project's own code, and on which terms.

The GNU C Library is linked statically, under the LGPL-2.1-or-later; with this project's source,
its Cargo.lock and its Dockerfile the binary can be linked again with another build of the library.
Rust's standard library is used under the terms of Apache-2.0, the text of which is also this
project's own LICENSE. The texts of the crates follow.

";
const WINDOWS_HEAD: &str = "\
What the Windows binary has in it besides what third-party-licenses.txt lists. Its start-up code is
that of mingw-w64, under the terms in mingw-w64.txt, and GCC's support library, under the GPL-3.0 with
the GCC Runtime Library Exception; the GNU C Library is not in it. The texts of the crates follow.

";

/// A crate that is linked into the binary.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Crate {
    name: String,
    version: String,
    license: &'static str,
    repository: String,
    folder: PathBuf,
}

fn cargo(arguments: &[&str]) -> String {
    let mut cargo = Command::new(env!("CARGO"));
    let output = cargo.args(arguments).arg("--locked").current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = output.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn shipped(targets: &[&str]) -> BTreeSet<Crate> {
    let tree = ["tree", "-e=normal,no-proc-macro", "--prefix=none", "--format={p} {l} | {r}"];
    let tree = cargo(&[&tree[..], targets].concat());
    let platform = targets[0].replace("--target", "--filter-platform");
    let metadata = cargo(&["metadata", "--format-version=1", &platform]);
    let crates =
        tree.lines().filter(|line| !line.is_empty() && !line.contains(env!("CARGO_MANIFEST_DIR")));
    crates.map(|line| Crate::read(line, &metadata)).collect()
}

impl Crate {
    fn read(line: &str, metadata: &str) -> Self {
        let (words, repository) = line.trim_end_matches(" (*)").split_once(" | ").unwrap();
        let mut words = words.splitn(3, ' ');
        let (name, version) =
            (words.next().unwrap(), words.next().unwrap().trim_start_matches('v'));
        let offered = words.next().unwrap();
        let license = PREFERRED
            .into_iter()
            .find(|name| offered.replace('/', " ").split(' ').any(|word| word == *name));
        let license = license.filter(|_| !offered.contains("AND"));
        let license =
            license.unwrap_or_else(|| panic!("{name}: no rule for the licence {offered}"));
        let end = format!("/{name}-{version}/Cargo.toml\"");
        let (before, _) = metadata.split_once(&end).unwrap();
        let (_, registry) = before.rsplit_once('"').unwrap();
        let folder = Path::new(registry).join(format!("{name}-{version}"));
        Self {
            name: name.into(),
            version: version.into(),
            license,
            repository: repository.into(),
            folder,
        }
    }

    /// The text of its licence, and of a NOTICE.
    fn texts(&self) -> Vec<String> {
        let files = fs::read_dir(&self.folder).unwrap();
        let mut files: Vec<_> =
            files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        let (licenses, others): (Vec<_>, Vec<_>) = files.iter().partition(|name| {
            let name = name.to_uppercase();
            name.starts_with("LICENSE") || name.starts_with("LICENCE")
        });
        let short = self.license.split('-').next().unwrap().to_uppercase();
        let named = licenses.iter().filter(|name| name.to_uppercase().contains(&short));
        let mut chosen: Vec<_> = named.copied().collect();
        // A file without a licence in its name is the only one.
        if chosen.is_empty() && licenses.len() == 1 {
            chosen = licenses;
        }
        chosen.extend(others.into_iter().filter(|name| name.starts_with("NOTICE")));
        let read = |name| fs::read_to_string(self.folder.join(name)).unwrap().replace("\r\n", "\n");
        chosen.into_iter().map(|name| read(name).trim_matches('\n').to_owned()).collect()
    }
}

/// `UPDATE=1` writes the document instead.
fn check_licenses(path: &str, head: &str, crates: &BTreeSet<Crate>) {
    let mut groups: Vec<((&str, String), Vec<String>)> = Vec::new();
    for one in crates {
        // Some crates of a workspace come without the text that their siblings have.
        let siblings = crates.iter().filter(|other| other.repository == one.repository);
        let mut texts = [one].into_iter().chain(siblings).map(Crate::texts);
        let texts = texts.find(|texts| !texts.is_empty());
        let texts = texts.unwrap_or_else(|| panic!("{}: no text of {}", one.name, one.license));
        for text in texts {
            let (terms, name) = ((one.license, text), format!("{} {}", one.name, one.version));
            match groups.iter_mut().find(|(other, _)| *other == terms) {
                Some((_, names)) => names.push(name),
                None => groups.push((terms, vec![name])),
            }
        }
    }
    let mut document = head.to_owned();
    for ((license, text), names) in groups {
        let (ruler, names) = ("=".repeat(100), names.join(", "));
        document += &format!("{ruler}\n{names}: {license}\n\n{text}\n\n");
    }
    if env::var_os("UPDATE").is_some() {
        fs::write(path, document).unwrap();
    } else {
        let current = fs::read_to_string(path).unwrap() == document;
        assert!(current, "{path} is not up to date: run `just licenses`");
    }
}

#[test]
fn are_licensed_as_the_document_says() {
    check_licenses(LICENSES, HEAD, &shipped(&TARGETS));
}

/// Apart from the others, as it downloads what no Linux build needs.
#[ignore = "it is for the Windows image"]
#[test]
fn that_only_windows_has_are_licensed_as_the_document_says() {
    let names: BTreeSet<_> = shipped(&TARGETS).into_iter().map(|one| one.name).collect();
    let mut crates = shipped(&WINDOWS);
    crates.retain(|one| !names.contains(&one.name));
    check_licenses(WINDOWS_LICENSES, WINDOWS_HEAD, &crates);
}

#[test]
fn each_have_a_reason_in_the_document() {
    let document = fs::read_to_string(DEPENDENCIES).unwrap();
    let (_, rest) = document.split_once("## In the binary\n").unwrap();
    let (table, _) = rest.split_once("\n## ").unwrap();
    let cells = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" |"));
    let documented: BTreeSet<_> =
        cells.flat_map(|(names, _)| names.split(' ').map(|name| name.trim_matches('`'))).collect();
    let crates = shipped(&TARGETS);
    let in_the_binary: BTreeSet<_> = crates.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(documented, in_the_binary);
    assert!(document.contains(&format!("\n{} crates are in the binary", in_the_binary.len())));
}
