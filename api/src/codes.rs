//! The outcome codes of driver calls.

use std::fmt;
use std::str::FromStr;

/// Defines the codes, with their names on the wire.
macro_rules! codes {
    ($( $(#[$doc:meta])* $code:ident = $name:literal, )+) => {
        /// The outcome of a driver call: gRPC's codes, and `Uninitialized`.
        ///
        /// `lastOperation.errorCode` has the name. The cluster autoscaler and Gardener read it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $( $(#[$doc])* $code, )+
        }

        impl Code {
            /// All codes, in gRPC's order.
            pub const ALL: &[Self] = &[$( Self::$code, )+];

            /// The name on the wire.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$code => $name, )+
                }
            }
        }
    };
}

codes! {
    /// The call succeeded.
    Ok = "OK",
    /// The caller canceled the call.
    Canceled = "Canceled",
    /// No other code fits.
    Unknown = "Unknown",
    /// The arguments are invalid, whatever the state of the provider.
    InvalidArgument = "InvalidArgument",
    /// The call took too long. It may have had an effect.
    DeadlineExceeded = "DeadlineExceeded",
    /// The VM does not exist.
    NotFound = "NotFound",
    /// Another VM exists in its place.
    AlreadyExists = "AlreadyExists",
    /// The credentials do not allow the call.
    PermissionDenied = "PermissionDenied",
    /// The provider has no capacity, or a quota is exhausted. The autoscaler tries another node group.
    ResourceExhausted = "ResourceExhausted",
    /// The state of the provider does not allow the call, and a retry alone does not help.
    FailedPrecondition = "FailedPrecondition",
    /// The call conflicted with another one.
    Aborted = "Aborted",
    /// A value is out of range. For a list: there may be unknown VMs.
    OutOfRange = "OutOfRange",
    /// The driver does not implement the call.
    Unimplemented = "Unimplemented",
    /// The driver or the provider is broken.
    Internal = "Internal",
    /// The provider is unreachable. A retry may help.
    Unavailable = "Unavailable",
    /// Data were lost.
    DataLoss = "DataLoss",
    /// The credentials are invalid.
    Unauthenticated = "Unauthenticated",
    /// The VM exists and is not initialized.
    Uninitialized = "Uninitialized",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text is not the name of a [`Code`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no machine code is named {0:?}")]
pub struct UnknownCodeError(String);

impl FromStr for Code {
    type Err = UnknownCodeError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.iter().copied().find(|code| code.name() == name).ok_or_else(|| UnknownCodeError(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for (number, &code) in Code::ALL.iter().enumerate() {
            assert_eq!(code as usize, number, "the numbers are gRPC's");
            assert_eq!(code.name().parse(), Ok(code));
        }
        assert_eq!((Code::Unauthenticated as usize, Code::Uninitialized as usize), (16, 17));
        assert!("ok".parse::<Code>().is_err());
    }
}
