//! The outcome codes of driver calls.

use std::fmt;

macro_rules! codes {
    ($( $(#[$doc:meta])* $code:ident = $name:literal, )+) => {
        /// The outcome of a driver call: gRPC's codes in their order, and `Uninitialized`.
        ///
        /// `lastOperation.errorCode` has the name. The cluster autoscaler and Gardener read it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $( $(#[$doc])* $code, )+
        }

        impl Code {
            /// The name on the wire.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$code => $name, )+
                }
            }

            /// The code with a name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $( $name => Some(Self::$code), )+
                    _ => None,
                }
            }

            /// The code with a number of gRPC's order.
            pub fn from_number(number: i32) -> Option<Self> {
                [$( Self::$code, )+].get(usize::try_from(number).ok()?).copied()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_grpcs() {
        let numbers = [Code::Ok, Code::InvalidArgument, Code::DataLoss, Code::Unauthenticated, Code::Uninitialized];
        assert_eq!(numbers.map(|code| code as usize), [0, 3, 15, 16, 17]);
        for code in numbers {
            assert_eq!(Code::from_name(code.name()), Some(code));
            assert_eq!(Code::from_number(code as i32), Some(code));
        }
        assert_eq!((Code::from_name("ok"), Code::from_number(-1), Code::from_number(18)), (None, None, None));
    }
}
