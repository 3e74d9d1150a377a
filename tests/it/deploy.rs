use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::{BINARY, World};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every YAML file below `deploy/`.
fn manifests() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![root().join("deploy")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 10, "{found:?}");
    found
}

/// The YAML blocks of a Markdown text.
fn quoted(text: &str) -> Vec<&str> {
    text.split("```yaml\n").skip(1).map(|rest| rest.split_once("```").unwrap().0).collect()
}

/// Whether these lines stand in the file one after another, all of them indented alike.
fn contains(file: &str, block: &str) -> bool {
    let lines: Vec<_> = file.lines().collect();
    let block: Vec<_> = block.lines().collect();
    lines.windows(block.len()).any(|window| {
        let indent = window[0].strip_suffix(block[0]);
        indent.is_some_and(|indent| {
            let mut pairs = window.iter().zip(&block);
            indent.trim().is_empty()
                && pairs.all(|(line, quoted)| line.strip_prefix(indent) == Some(quoted))
        })
    })
}

#[test]
fn quotes_in_the_documents_are_parts_of_the_manifests() {
    let files: Vec<_> = manifests().into_iter().map(read).collect();
    let mut count = 0;
    for document in ["README.md", "deploy/README.md"] {
        for block in quoted(&read(document)) {
            let known = files.iter().any(|file| contains(file, block));
            assert!(known, "{document} quotes what no manifest says:\n{block}");
            count += 1;
        }
    }
    assert!(count >= 2);
}

#[test]
fn manifests_and_documents_name_the_present_version() {
    let version = concat!("v", env!("CARGO_PKG_VERSION"));
    let image = "registry.example.com/csi-node-driver-registrar";
    let documents = ["README.md", "deploy/README.md"].map(|name| root().join(name));
    for path in manifests().into_iter().chain(documents) {
        for line in read(&path).lines() {
            let tag = |mark: &str| line.split_once(mark).map(|(_, tag)| tag.trim());
            let tags = [tag(&format!("{image}:")), tag("    tag: "), tag("newTag: &tag ")];
            for tag in tags.into_iter().flatten() {
                assert!(tag.starts_with(version), "{}: {line}", path.display());
            }
        }
    }
}

#[test]
fn flags_in_the_manifests_are_known() {
    let world = World::new();
    for manifest in
        ["deploy/sidecar.yaml", "deploy/example/daemonset.yaml", "deploy/windows/daemonset.yaml"]
    {
        let text = read(manifest);
        let container = text.split_once("node-driver-registrar\n").unwrap().1;
        let arguments: Vec<_> = container
            .lines()
            .skip_while(|line| line.trim() != "args:")
            .skip(1)
            .map(str::trim)
            .take_while(|line| line.starts_with(['-', '#']))
            .filter_map(|line| line.strip_prefix("- "))
            .collect();
        assert!(arguments.len() >= 2, "{manifest}: {arguments:?}");
        let mut registrar =
            world.run(&[&[&**BINARY], &*arguments, &["--version"]].concat(), |_| {});
        assert_eq!(registrar.exit_code(), 0, "{manifest}: {}", registrar.stderr());
    }
}
