"""One function per question: a model and settings in, a result out."""
