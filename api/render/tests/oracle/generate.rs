//! Configs by chance: of all fields of all versions, with few names, so that they meet, and with errors in half of the
//! sequences.

use fastrand::Rng;
use serde_json::{Map, Value, json};

/// What a field holds.
#[derive(Clone, Copy)]
enum Kind {
    /// One of these texts; or one of those, which are wrong somewhere.
    Text(&'static [&'static str], &'static [&'static str]),
    /// The same for numbers.
    Number(&'static [i64], &'static [i64]),
    Flag,
    Object(&'static [Field]),
    /// Up to so many.
    List(&'static Kind, usize),
}

/// A field: its name, the minor version that brought it, in how many of a hundred objects it is, and what it holds.
#[derive(Clone, Copy)]
struct Field(&'static str, usize, usize, Kind);

use Kind::{Flag, List, Number, Object, Text};

/// A sequence of one to four configs.
pub(crate) fn sequence(seed: u64) -> Vec<Value> {
    let mut rng = Rng::with_seed(seed);
    let errors = if rng.bool() { 0 } else { 2 };
    (0..rng.usize(1..=4)).map(|_| config(&mut rng, errors)).collect()
}

fn config(rng: &mut Rng, errors: usize) -> Value {
    let minor = if rng.bool() { 5 } else { rng.usize(0..=5) };
    let mut config = Generator { rng, minor, errors }.object(CONFIG);
    let version = if errors > 0 && rng.usize(..50) == 0 {
        pick(rng, &["2.2.0", "3.6.0", "3.5", "21.0.0", "", "text"], &[]).into()
    } else {
        format!("3.{minor}.0")
    };
    if let Some(ignition) = config.get_mut("ignition").and_then(Value::as_object_mut) {
        ignition.insert("version".to_owned(), version.into());
    }
    config
}

struct Generator<'a> {
    rng: &'a mut Rng,
    minor: usize,
    /// Of a hundred values.
    errors: usize,
}

impl Generator<'_> {
    fn chance(&mut self, of_a_hundred: usize) -> bool {
        self.rng.usize(..100) < of_a_hundred
    }

    fn object(&mut self, fields: &[Field]) -> Value {
        let mut object = Map::new();
        for Field(name, since, share, kind) in fields {
            // A field that the version does not have is ignored by Ignition.
            let is_known = *since <= self.minor || self.chance(self.errors);
            let is_forgotten = self.chance(self.errors);
            if is_known && !is_forgotten && self.chance(*share) {
                object.insert((*name).to_owned(), self.value(*kind));
            }
        }
        if self.chance(self.errors) {
            object.insert("unknown".to_owned(), json!([{}]));
        }
        Value::Object(object)
    }

    fn long_lines(&mut self) -> String {
        let lines = (0..self.rng.usize(1..6)).map(|_| {
            let kind = pick(self.rng, &["A=", "# ", "[", "A=\\\n", "ä="], &[]);
            let length = if self.rng.bool() { self.rng.usize(2030..2060) } else { self.rng.usize(..6000) };
            format!("{kind}{}{}\n", "x".repeat(length), if kind == "[" { "]" } else { "" })
        });
        format!("[Unit]\n{}", lines.collect::<String>())
    }

    fn value(&mut self, kind: Kind) -> Value {
        let is_wrong = self.chance(self.errors);
        if is_wrong && self.chance(20) {
            let others = [json!(null), json!("text"), json!(7), json!(1.5), json!(true), json!({}), json!([])];
            return self.rng.choice(&others).unwrap().clone();
        }
        match kind {
            Text(right, wrong) => match pick(self.rng, right, if is_wrong { wrong } else { &[] }) {
                LONG_LINES => self.long_lines().into(),
                text => text.into(),
            },
            Number(right, wrong) => pick(self.rng, right, if is_wrong { wrong } else { &[] }).into(),
            Flag => self.rng.bool().into(),
            Object(fields) => self.object(fields),
            List(element, longest) => {
                let length = self.rng.usize(0..=longest);
                let mut list: Vec<_> = (0..length).map(|_| self.value(*element)).collect();
                // Ignition reads null as an empty text, which Nodewright refuses in a list.
                list.retain(|element| !element.is_null());
                if !is_wrong {
                    let mut seen = Vec::new();
                    list.retain(|element| {
                        let name =
                            ["path", "name", "device", "url", "source"].iter().find_map(|field| element.get(field));
                        let name = name.unwrap_or(element).clone();
                        let is_new = !seen.contains(&name);
                        seen.push(name);
                        is_new
                    });
                }
                Value::Array(list)
            }
        }
    }
}

/// Stands for a unit with lines that are longer than systemd reads, or nearly so.
const LONG_LINES: &str = "long lines";

/// One of the wrong ones if there are any, else one of the right ones.
fn pick<T: Copy>(rng: &mut Rng, right: &[T], wrong: &[T]) -> T {
    *rng.choice(if wrong.is_empty() { right } else { wrong }).unwrap()
}

const CONFIG: &[Field] = &[
    Field("ignition", 0, 200, Object(IGNITION)),
    Field("kernelArguments", 3, 30, Object(KERNEL_ARGUMENTS)),
    Field("passwd", 0, 40, Object(PASSWD)),
    Field("storage", 0, 80, Object(STORAGE)),
    Field("systemd", 0, 40, Object(SYSTEMD)),
];

const IGNITION: &[Field] = &[
    Field(
        "config",
        0,
        20,
        Object(&[Field("merge", 0, 50, List(&Object(RESOURCE), 2)), Field("replace", 0, 80, Object(REMOTE))]),
    ),
    Field(
        "proxy",
        1,
        30,
        Object(&[
            Field("httpProxy", 1, 50, Text(PROXIES, &["ftp://proxy", "proxy", "", "http://a b"])),
            Field("httpsProxy", 1, 50, Text(PROXIES, &["ftp://proxy", "proxy", "", "http://[::1"])),
            Field("noProxy", 1, 80, List(&Text(&["a", "b", "c.example.com"], &[""]), 3)),
        ]),
    ),
    Field(
        "security",
        0,
        25,
        Object(&[Field("tls", 0, 80, Object(&[Field("certificateAuthorities", 0, 80, List(&Object(RESOURCE), 2))]))]),
    ),
    Field(
        "timeouts",
        0,
        10,
        Object(&[
            Field("httpResponseHeaders", 0, 50, Number(&[0, 10], &[-1])),
            Field("httpTotal", 0, 50, Number(&[0, 10], &[-1])),
        ]),
    ),
];

const PROXIES: &[&str] = &["http://proxy", "https://user:word@proxy:3128", "HTTP://proxy/path"];

const KERNEL_ARGUMENTS: &[Field] = &[
    Field("shouldExist", 3, 60, List(&Text(&["quiet", "nosmt", "a=1"], &[""]), 2)),
    Field("shouldNotExist", 3, 40, List(&Text(&["rhgb", "a=2", "a=1"], &[""]), 1)),
];

const PASSWD: &[Field] = &[
    Field(
        "groups",
        0,
        40,
        List(
            &Object(&[
                Field("gid", 0, 40, Number(&[0, 1000], &[-5])),
                Field("name", 0, 200, Text(&["wheel", "docker"], &[""])),
                Field("passwordHash", 0, 30, Text(&["hash", ""], &[])),
                Field("shouldExist", 2, 30, Flag),
                Field("system", 0, 30, Flag),
            ]),
            2,
        ),
    ),
    Field(
        "users",
        0,
        80,
        List(
            &Object(&[
                Field("gecos", 0, 20, Text(&["", "someone"], &[])),
                Field("groups", 0, 40, List(&Text(&["wheel", "docker", "adm"], &[""]), 3)),
                Field("homeDir", 0, 20, Text(&["/home/core", "relative"], &[])),
                Field("name", 0, 200, Text(&["core", "root"], &[""])),
                Field("noCreateHome", 0, 20, Flag),
                Field("noLogInit", 0, 20, Flag),
                Field("noUserGroup", 0, 20, Flag),
                Field("passwordHash", 0, 40, Text(&["hash", "other"], &[""])),
                Field("primaryGroup", 0, 20, Text(&["wheel"], &[""])),
                Field("shell", 0, 20, Text(&["/bin/sh"], &[""])),
                Field("shouldExist", 2, 20, Flag),
                Field("sshAuthorizedKeys", 0, 70, List(&Text(&["5678", "abc", "1234"], &[""]), 3)),
                Field("system", 0, 20, Flag),
                Field("uid", 0, 20, Number(&[0, 1000], &[-1])),
            ]),
            2,
        ),
    ),
];

const STORAGE: &[Field] = &[
    Field(
        "directories",
        0,
        30,
        List(
            &Object(&[
                Field("group", 0, 20, Object(OWNER)),
                Field("mode", 0, 40, Number(MODES, BAD_MODES)),
                Field("overwrite", 0, 30, Flag),
                Field("path", 0, 200, Text(DIRECTORIES, BAD_PATHS)),
                Field("user", 0, 20, Object(OWNER)),
            ]),
            1,
        ),
    ),
    Field("disks", 0, 35, List(&Object(DISK), 2)),
    Field("files", 0, 80, List(&Object(FILE), 3)),
    Field("filesystems", 0, 30, List(&Object(FILESYSTEM), 2)),
    Field(
        "links",
        0,
        30,
        List(
            &Object(&[
                Field("group", 0, 20, Object(OWNER)),
                Field("hard", 0, 30, Flag),
                Field("overwrite", 0, 30, Flag),
                Field("path", 0, 200, Text(LINKS, BAD_PATHS)),
                Field(
                    "target",
                    0,
                    150,
                    Text(&["/target", "../relative", "/srv/c", "../../srv/c", "/etc/../srv/./c/"], &[""]),
                ),
                Field("user", 0, 20, Object(OWNER)),
            ]),
            2,
        ),
    ),
    Field("luks", 2, 50, List(&Object(LUKS), 2)),
    Field(
        "raid",
        0,
        40,
        List(
            &Object(&[
                Field("devices", 0, 200, List(&Text(&["/dev/a", "/dev/b", "/dev/c"], BAD_PATHS), 3)),
                Field(
                    "level",
                    0,
                    200,
                    Text(&["stripe", "raid1", "10", "linear", "0", "raid6", "mirror"], &["", "7", "raid"]),
                ),
                Field("name", 0, 200, Text(&["data", "swap"], &[""])),
                Field("options", 0, 30, List(&Text(&["--a", "--b"], &[""]), 2)),
                Field("spares", 0, 30, Number(&[0], &[1, -1])),
            ]),
            1,
        ),
    ),
];

const DIRECTORIES: &[&str] = &["/srv/c", "/srv/d", "/etc/both", "/"];
const LINKS: &[&str] = &["/etc/link", "/etc/both", "/srv/file"];
const BAD_PATHS: &[&str] =
    &["", "relative", "/dirty/", "/dirty//path", "/a/../b", "/.", "/etc/link/beneath", "/etc/systemd/system/a.service"];
const MODES: &[i64] = &[0, 420, 493, 1023, 4095];
const BAD_MODES: &[i64] = &[-1, 4096, 9_999_999];

const OWNER: &[Field] =
    &[Field("id", 0, 30, Number(&[0, 7], &[-1])), Field("name", 0, 30, Text(&["", "root", "core"], &["root"]))];

const FILE: &[Field] = &[
    Field("append", 0, 25, List(&Object(RESOURCE), 2)),
    Field("contents", 0, 90, Object(RESOURCE)),
    Field("group", 0, 20, Object(OWNER)),
    Field("mode", 0, 60, Number(MODES, BAD_MODES)),
    Field("overwrite", 0, 10, Flag),
    Field("path", 0, 200, Text(&["/etc/a", "/etc/b", "/etc/both", "/srv/file", "/etc/sysctl.d/a.conf"], BAD_PATHS)),
    Field("user", 0, 20, Object(OWNER)),
];

const RESOURCE: &[Field] = &[
    Field("compression", 0, 30, Text(&["gzip", ""], &["xz"])),
    Field("httpHeaders", 1, 3, HEADERS),
    Field("source", 0, 150, Text(SOURCES, BAD_SOURCES)),
    Field(
        "verification",
        0,
        5,
        Object(&[Field("hash", 0, 80, Text(&[SHA_512], &[SHA_256, "sha512-abc", "md5-00", "nothing", "", "sha256-"]))]),
    ),
];

const HEADERS: Kind = List(
    &Object(&[
        Field("name", 1, 200, Text(&["Authorization", "X-One"], &[""])),
        Field("value", 1, 70, Text(&["secret", "one"], &[""])),
    ]),
    2,
);

/// What is fetched with headers.
const REMOTE: &[Field] = &[
    Field("httpHeaders", 1, 80, HEADERS),
    Field("source", 0, 200, Text(&["http://host/a", "https://host/b"], BAD_SOURCES)),
];

const SHA_512: &str = "sha512-00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000";
const SHA_256: &str = "sha256-0000000000000000000000000000000000000000000000000000000000000000";

const SOURCES: &[&str] = &[
    "data:,old",
    "data:,new%20text",
    "data:;base64,YQ==",
    "data:text/plain;charset=utf-8;base64,YWJj",
    "http://host/file",
    "https://host:8443/file?query#fragment",
    "tftp://host/file",
    "s3://bucket/key?versionId=7",
    "data:,",
];

const BAD_SOURCES: &[&str] = &[
    "",
    "gs://bucket/object",
    "arn:aws:s3:::bucket/object",
    "arn:aws:s3:::bucket",
    "arn:aws:s3:us-west-1:1:accesspoint/test",
    "arn:aws:s3:us-west-1:1:accesspoint/test/object/a?versionId=",
    "arn:aws:ec2:::bucket/object",
    "arn:aws:s3",
    "s3://bucket/key?versionId=",
    "s3://bucket/key?versionId=&versionId=3",
    "s3://bucket/key?a=%zz&versionId",
    "ftp://host/file",
    "file:///etc/passwd",
    "no-url",
    ":",
    "1http://host",
    "a:b:c",
    "a b://host",
    "http://ho st/",
    "http://host:port/",
    "http://host:80:80/",
    "tftp://host:80:80/",
    "http://[::1]/a",
    "http://[::1%25en0]:80/a",
    "http://[fe80::1%25%65n0]/",
    "http://[1.2.3.4]/",
    "http://[::1/",
    "http://a[b]/",
    "http://us%65r:p%40ss@host/",
    "http://us er@host/",
    "http://user@name@host/",
    "http://h%C3%A4us/",
    "http://h%61us/",
    "http://h\"<>us/",
    "http://h^us/",
    "http://host/%zz",
    "http://host/a\tb",
    "http://host/?%zz",
    "http://host/#%zz",
    "http:opaque",
    "http:/path",
    "http:///path",
    "//host/path",
    "*",
    "?",
    "#",
    "HTTP://HOST/",
    "DATA:,upper",
    "data:",
    "data:text",
    "data:text/plain",
    "data:text/plain,a",
    "data:textual/x,a",
    "data:foo/plain,a",
    "data:x-foo/bar,a",
    "data:X-foo/bar;base64,YQ==",
    "data:xfoo/bar,a",
    "data:/plain,a",
    "data:text/,a",
    "data:te xt/plain,a",
    "data:text/plain;,a",
    "data:text/plain;charset=,a",
    "data:text/plain;=utf-8,a",
    "data:text/plain;charset=a%20b,a",
    "data:text/plain;charset=a%2,a",
    "data:text/plain;charset=\"a;b,c\",a",
    "data:text/plain;charset=\"a\\x41\\u0041\\101\\n\",a",
    "data:text/plain;charset=\"a\\x4\",a",
    "data:text/plain;charset=\"a\\'\",a",
    "data:text/plain;charset=\"a\\400\",a",
    "data:text/plain;charset=\"a\\ud800\",a",
    "data:text/plain;charset=\"a",
    "data:text/plain;charset=\"\";a=b,a",
    "data:text/plain;charset=\"a\"b,a",
    "data:;base64",
    "data:;base65,YQ==",
    "data:;base64,YQ",
    "data:;base64,YQ=",
    "data:;base64,YQ===",
    "data:;base64,Y=Q=",
    "data:;base64,YR==",
    "data:;base64,YQ-_",
    "data:;base64,YQ==YQ==",
    "data:;base64,Y\nQ==",
    "data:;base64,====",
    "data:;base64;a=b,YQ==",
    "data:;a=b;base64,YQ==",
    "data:,a b",
    "data:,a%2",
    "data:,a%2g",
    "data:,<a>",
    "data:,a|b",
    "data:,ä",
    "data:,a#b",
    "data:,a#%zz",
];

const DISK: &[Field] = &[
    Field("device", 0, 200, Text(&["/dev/sda", "/dev/sdb"], BAD_PATHS)),
    Field("partitions", 0, 60, List(&Object(PARTITION), 3)),
    Field("wipeTable", 0, 30, Flag),
];

const PARTITION: &[Field] = &[
    Field(
        "guid",
        0,
        10,
        Text(&["", "01234567-89AB-CDEF-EDCB-A98765432101"], &["0123", "01234567-89AB-CDEF-EDCB-A9876543210g"]),
    ),
    Field(
        "label",
        0,
        70,
        Text(
            &["root", "var", "boot", "data"],
            &["", "a:b", "a label of more than thirty-six bytes.", "a:label of more than thirty-six bytes.", "root"],
        ),
    ),
    Field("number", 0, 70, Number(&[1, 2, 3, 4], &[0, -1, 1])),
    Field("resize", 2, 20, Flag),
    Field("shouldExist", 0, 3, Flag),
    Field("sizeMiB", 0, 20, Number(&[0, 100], &[1000, 1])),
    Field("startMiB", 0, 20, Number(&[0, 1, 101, 2000, 5000], &[50])),
    Field("typeGuid", 0, 10, Text(&["", "01234567-89ab-cdef-edcb-a98765432101"], &["x"])),
    Field("wipePartitionEntry", 0, 20, Flag),
];

const FILESYSTEM: &[Field] = &[
    Field("device", 0, 200, Text(&["/dev/sda", "/dev/sda1", "/dev/sdc"], BAD_PATHS)),
    Field("format", 0, 200, Text(&["ext4", "xfs", "btrfs", "vfat", "swap"], &["", "none", "ntfs"])),
    Field(
        "label",
        0,
        30,
        Text(
            &["", "root"],
            &["eleven byte", "twelve bytes", "fifteen bytes..", "sixteen bytes...", "seventeen bytes.."],
        ),
    ),
    Field("mountOptions", 1, 50, List(&Text(&["ro", "noatime"], &[""]), 2)),
    Field("options", 0, 50, List(&Text(&["-a", "-b"], &[""]), 2)),
    Field("path", 0, 40, Text(&["", "/var", "/data"], BAD_PATHS)),
    Field("uuid", 0, 20, Text(&["", "0123"], &[])),
    Field("wipeFilesystem", 0, 30, Flag),
];

const LUKS: &[Field] = &[
    Field("cex", 5, 10, Object(&[Field("enabled", 5, 90, Flag)])),
    Field(
        "clevis",
        2,
        70,
        Object(&[
            Field(
                "custom",
                2,
                4,
                Object(&[
                    Field("config", 2, 150, Text(&["{}"], &[""])),
                    Field("needsNetwork", 2, 40, Flag),
                    Field("pin", 2, 150, Text(&["tpm2", "tang", "sss"], &["", "yubikey"])),
                ]),
            ),
            Field(
                "tang",
                2,
                60,
                List(
                    &Object(&[
                        Field("advertisement", 4, 30, Text(&["", "{}", "[1, 2]"], &["{", "text", "{} {}"])),
                        Field("thumbprint", 2, 200, Text(&["print", "other"], &[""])),
                        Field("url", 2, 200, Text(&["https://tang", "http://tang"], &["", "ftp://tang", "a b"])),
                    ]),
                    2,
                ),
            ),
            Field("threshold", 2, 20, Number(&[0], &[1, -1])),
            Field("tpm2", 2, 20, Flag),
        ]),
    ),
    Field("device", 2, 200, Text(&["/dev/sdd", "/dev/sde"], BAD_PATHS)),
    Field("discard", 4, 20, Flag),
    Field("keyFile", 2, 20, Object(RESOURCE)),
    Field("label", 2, 20, Text(&["", "luks"], &["a label that is longer than all that LUKS can have"])),
    Field("name", 2, 200, Text(&["data", "var"], &["", "a/b"])),
    Field("openOptions", 4, 60, List(&Text(&["--a", "--b"], &[""]), 2)),
    Field("options", 2, 20, List(&Text(&["--a", "--b"], &[""]), 2)),
    Field("uuid", 2, 20, Text(&["", "0123"], &[])),
    Field("wipeVolume", 2, 20, Flag),
];

const SYSTEMD: &[Field] = &[Field(
    "units",
    0,
    100,
    List(
        &Object(&[
            Field("contents", 0, 50, Text(UNITS, BAD_UNITS)),
            Field(
                "dropins",
                0,
                40,
                List(
                    &Object(&[
                        Field("contents", 0, 80, Text(UNITS, BAD_UNITS)),
                        Field("name", 0, 200, Text(&["10-a.conf", "20-b.conf"], &["", "a", "a.conf/b", ".conf"])),
                    ]),
                    2,
                ),
            ),
            Field("enabled", 0, 40, Flag),
            Field("mask", 0, 40, Flag),
            Field(
                "name",
                0,
                200,
                Text(
                    &["a.service", "b.timer", "c@.service", "c@1.service"],
                    &["", "a", "a.conf", "a.service/b", ".mount"],
                ),
            ),
        ]),
        3,
    ),
)];

const UNITS: &[&str] =
    &["", "[Unit]\nDescription=one\n", "[Service]\nExecStart=/bin/a \\\n  --b\n[Install]\nWantedBy=multi-user.target"];
const BAD_UNITS: &[&str] = &[
    LONG_LINES,
    LONG_LINES,
    LONG_LINES,
    "no section",
    "[Unit",
    "[Unit]x\n",
    "[Unit]  \t\n",
    "[Unit]\r\nA=b\r\n",
    "[Unit]\nname\n",
    "[Unit]\nname",
    "[Unit]\nA=b\\",
    "[Unit]\nA=b\\\r\nc\n",
    "[Unit]\n# comment \\\n[Service\n",
    "# comment \\ \n[Service\n",
    "; [\n[A]\n= \n",
    "[A]\n  [B] \n",
    "[A\nB]\nC=d\n",
    "[A]\u{a0}\n\u{85}B=c\n",
    "[A]\nÄ=ö\n",
];
