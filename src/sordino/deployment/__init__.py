"""The auditor's record: one document of what a run or a federation released, and what it rests on.

Theory of operation
-------------------

A data protection officer reads ``record.html``, a machine checks ``record.yaml``. Both are made of
one :class:`~.document.Record`. Its facts come from four places, and no other:

* the run folder: study, ``run.json``, the guarantee in the words of the report (:mod:`.facts`);
* what ``sordino audit`` printed, where an audit ran (:func:`.facts.read_attacks`);
* the proofs that sites have signed, each over the last digest of its own ledger;
* answers of whoever writes the record, to questions that no program can answer: why this epsilon,
  what was done with the data outside of the ledger, who may read it (:class:`.document.Answers`).
  What is not answered stands in the record as an open question.

Its first part is a draft for the public registry of deployments: its fields are those of the
registry's schema, so that it can be handed in as it is. Then come the points of NIST SP 800-226
(what holds, what is assumed, what is open), the actors, and one list of what is not protected.

The server of a federation signs the document over all proofs. :func:`~.document.check` needs the
document and the authority's certificate alone: each proof must be of a site of this federation and
of this run, no site may have spent more than the document states, and the signature must be of the
authority's server. Equal content has equal bytes to sign (JSON with sorted keys), however the YAML
is laid out. The page is not signed; it can be made again from the document.
"""
